package com.dinstone.beanstalkc;

public class BeanstalkClientFactory {
    public BeanstalkClientFactory(Configuration config) {}

    public JobProducer createJobProducer(String useTube) {
        return null;
    }

    public JobConsumer createJobConsumer(String... watchTubes) {
        return null;
    }
}
