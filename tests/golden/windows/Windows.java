import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.*;
import java.time.*; import java.util.*; import java.nio.file.*;
public class Windows {
  static Duration ms(long m){return Duration.ofMillis(m);}
  public static void main(String[] x) throws Exception {
    StringBuilder all=new StringBuilder();
    for(int seed=0; seed<Integer.parseInt(x[0]); seed++){
      Random r=new Random(seed);
      String kind=new String[]{"tumbling","hopping","sliding","sliding"}[seed%4];
      int size=1+r.nextInt(12), advance=1+r.nextInt(size), grace=r.nextInt(4)==0?1000:r.nextInt(3)==0?0:r.nextInt(15);
      if(kind.equals("tumbling")) advance=size;
      int n=3+r.nextInt(14), span=8+r.nextInt(60), drift=r.nextInt(4), base=r.nextBoolean()?0:500, keys=1+r.nextInt(2);
      StreamsBuilder b=new StreamsBuilder();
      var g=b.<String,String>stream("in").groupByKey();
      TimeWindowedKStream<String,String> w = kind.equals("sliding")
        ? g.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(size),ms(grace)))
        : g.windowedBy(TimeWindows.ofSizeAndGrace(ms(size),ms(grace)).advanceBy(ms(advance)));
      w.aggregate(()->"", (k,v,a)->a+v, Materialized.<String,String,WindowStore<Bytes,byte[]>>as("s").withKeySerde(Serdes.String()).withValueSerde(Serdes.String()))
       .toStream().map((k,v)->KeyValue.pair(k.key()+"@"+k.window().start()+"-"+k.window().end(), v)).to("out");
      Properties p=new Properties();p.put("application.id","t");p.put("bootstrap.servers","x:1");p.put("default.key.serde",Serdes.StringSerde.class);p.put("default.value.serde",Serdes.StringSerde.class);p.put("state.dir","state");p.put("statestore.cache.max.bytes",0);
      StringBuilder o=new StringBuilder();
      o.append("{\"kind\":\""+kind+"\",\"size\":"+size+",\"advance\":"+advance+",\"grace\":"+grace+",\"records\":[");
      try(TopologyTestDriver d=new TopologyTestDriver(b.build(),p)){
        var in=d.createInputTopic("in",new StringSerializer(),new StringSerializer());
        var out=d.createOutputTopic("out",new StringDeserializer(),new StringDeserializer());
        for(int i=0;i<n;i++){
          String k=keys==1?"a":r.nextBoolean()?"a":"b"; String v=String.valueOf((char)('A'+i));
          int t=Math.max(0,base+i*drift+r.nextInt(span));
          in.pipeInput(k,v,Instant.ofEpochMilli(t));
          o.append((i>0?",":"")+"[\""+k+"\",\""+v+"\","+t+",[");
          boolean first=true;
          while(!out.isEmpty()){ var q=out.readRecord(); o.append((first?"":",")+"[\""+q.key()+"\",\""+q.value()+"\","+q.timestamp()+"]"); first=false; }
          o.append("]]");
        }
        o.append("]}");
      }
      all.append(o).append("\n");
    }
    Files.writeString(Path.of("results.jsonl"), all.toString());
  }
}
